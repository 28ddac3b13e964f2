// Package report collects what a report of a problem needs, and writes it into one archive. It has
// no environment of a container, and nothing of a daemon's configuration that is not the shim's.
//
//	files := report.Files{}
//	report.Host.Collect(ctx, "", files)
//	err := files.Write("report.tar.gz")
package report
