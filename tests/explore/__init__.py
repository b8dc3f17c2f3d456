"""The live stages under virtual time, with faults at any await, from one seed (``make explore``)."""
