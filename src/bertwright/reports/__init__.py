"""Pages and lists about run folders."""
