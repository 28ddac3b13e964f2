// Package serve answers HTTP requests about the GPUs of this host: metrics for Prometheus, a page
// for people, and the endpoints of nvidia-docker 1.
//
// It reads status and NVML at each request, and the events that shims have added to the state
// directory. It changes nothing, and answers only GET and HEAD:
//
//	http.Serve(listener, serve.New(serve.Options{StateDir: dir, Status: read, DockerArgs: args}))
package serve
