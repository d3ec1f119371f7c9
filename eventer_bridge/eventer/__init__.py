"""The Eventer protocol (001): what Hat components and Event Servers speak to each other."""
