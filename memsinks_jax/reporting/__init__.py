"""Results for people: claims, tables, pages."""
