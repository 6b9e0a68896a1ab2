"""What a trained network is for: classes of images, and files for other programs."""
