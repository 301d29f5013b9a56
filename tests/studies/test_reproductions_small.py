"""The claims of every reproduction, on its small version."""

from __future__ import annotations

import pytest

from router.studies.reproductions.catalogue import STUDIES
from router.studies.reproductions.store import run
from router.studies.reproductions.study import Size


@pytest.mark.parametrize("name", STUDIES)
def test_what_a_study_claims_holds_in_its_small_version(name: str) -> None:
    study = STUDIES[name]
    findings = study.find(run(study, Size.SMALL))

    assert findings.claims, "a study that claims nothing is not checked"
    missed = [
        f"{claim.text}: {claim.value:.4g}, allowed {claim.least:g} to {claim.most:g}"
        for claim in findings.claims
        if not claim.holds
    ]
    assert not missed
