"""The topics as documents: AsyncAPI, access rules, a list for people."""
