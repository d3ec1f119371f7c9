"""The Eventer protocol (001), between Hat components and Event Servers."""
