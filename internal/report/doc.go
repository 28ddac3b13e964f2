// Package report collects the data for a problem report in one archive. The archive has no
// environment of a container, and of a daemon's configuration only what concerns the shim.
//
//	files := report.Files{}
//	report.Host.Collect(ctx, "", files)
//	err := files.Write("report.tar.gz")
package report
