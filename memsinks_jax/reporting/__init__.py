"""Reports: claims, tables, pages."""
