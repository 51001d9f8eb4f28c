"""What tasks hand to each other and to other rooms."""
