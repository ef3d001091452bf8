"""The composition root: joins the stages and talks to people."""
