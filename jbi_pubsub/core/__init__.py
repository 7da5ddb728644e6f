"""The ground floor: errors, information objects, leases, safe XML, XPath, the wire, configuration."""
