#!/no/such/interpreter
probe_name="bad_interpreter"
primary_capability_id="cap_fs_write_temp"
