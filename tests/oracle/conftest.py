collect_ignore = ["recorded_programs"]
