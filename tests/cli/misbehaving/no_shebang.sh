probe_name="no_shebang"
primary_capability_id="cap_fs_write_temp"
