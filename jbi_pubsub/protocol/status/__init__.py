"""Statuses of servers, a module for each kind: one definition that servers make and all others read."""
