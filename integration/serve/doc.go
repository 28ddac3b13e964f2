// Package serve tests `nvidia-shimctl serve` with a real containerd, Prometheus and Chromium.
package serve
