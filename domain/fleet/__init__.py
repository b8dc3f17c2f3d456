"""What serves: devices and the variant instances on them."""
