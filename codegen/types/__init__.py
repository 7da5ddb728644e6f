"""The type repository on disk and in memory: `catalogue` stores descriptors, `registry` has the rules for changing
them, `untyped` stands for a type without a schema, `sampling` tries a schema on documents."""
