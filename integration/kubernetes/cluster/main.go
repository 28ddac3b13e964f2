package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // as kube-apiserver's own main

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // as the commands' own mains
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // as the commands' own mains
	_ "k8s.io/component-base/metrics/prometheus/version"  // as the commands' own mains
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-scheduler":
		os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
	case "kubelet":
		os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background())))
	default:
		fmt.Fprintf(os.Stderr, "%q is none of etcd, kube-apiserver, kube-scheduler and kubelet\n", name)
		os.Exit(2)
	}
}
