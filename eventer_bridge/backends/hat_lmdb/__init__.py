"""Reading the LMDB database of hat-event servers, to import it into a new store."""
