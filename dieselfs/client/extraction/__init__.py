"""Files of a dataset copied into a local folder: `dlcmd get` and `Client.download`."""
