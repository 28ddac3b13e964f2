// Command cluster is etcd, kube-apiserver, kube-scheduler or kubelet, whichever
// it is called as: one program is built once and is a third of the size of four.
//
// Test code; ../build.sh builds it. It must never differ from what the commands'
// own main functions do.
package main
