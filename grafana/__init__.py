"""What watches the service: dashboards as code, recording and alert rules, and what Grafana is provisioned with."""
