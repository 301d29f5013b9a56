"""The open-loop load client behind `pointsman replay`: prompts, schedule, requests, records, report."""
