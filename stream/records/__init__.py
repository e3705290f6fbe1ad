"""What flows: one module a contract. msgspec only, no behaviour."""
