// Package ctl tests nvidia-shimctl with real containers: status, run-args.
package ctl
