"""Is this fleet good? Node reports merged, voted on, compared, and shown as one result in many
forms.
"""
