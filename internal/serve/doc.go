// Package serve answers HTTP requests about the GPUs of this host: metrics for Prometheus, a page
// for people, and the endpoints of nvidia-docker 1.
//
// It reads what status.Read and NVML say when it is asked, and the events that shims have added to
// the state directory. It changes nothing, and answers GET and HEAD only:
//
//	http.Serve(listener, serve.New(serve.Options{StateDir: dir, Status: read, DockerArgs: args}))
package serve
