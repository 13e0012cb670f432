"""Questions with several answers to choose from: SWAG."""
