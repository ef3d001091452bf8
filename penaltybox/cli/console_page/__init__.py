"""`penaltybox console`: a web page that shows what is in force and what happens, and bans and unbans by hand."""
