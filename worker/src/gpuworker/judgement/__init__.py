"""Judgement of reports, from one check to a whole fleet. It opens no file and no socket."""
