"""What engines publish about their KV blocks: received, decoded, and handed to the prefix index in order."""
