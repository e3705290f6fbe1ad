#!/usr/bin/env bash
# An agent without a model: it does what it always does, and needs no network.
set -euo pipefail

cat >slug.py <<'PYTHON'
import re


def slug(title):
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))
PYTHON

cat >test_slug.py <<'PYTHON'
import unittest

from slug import slug


class SlugTest(unittest.TestCase):
    def test_slug(self):
        self.assertEqual(slug("  A Title, with 2 parts!"), "a-title-with-2-parts")
PYTHON

tests=failed
if PYTHONDONTWRITEBYTECODE=1 python3 -m unittest -q; then
  tests=passed
fi
printf '{"changed": ["slug.py", "test_slug.py"], "tests": "%s"}\n' "$tests"
