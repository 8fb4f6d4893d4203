// SPDX-License-Identifier: Apache-2.0

// Command guest is the only program of the bare guests of tests. It copies its
// input to its output, or what it receives on a TCP port back to the sender.
package main

import (
	"fmt"
	"io"
	"net"
	"os"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/vm"
)

func main() {
	if vm.IsInit() {
		fmt.Fprintln(os.Stderr, vm.Init(configure))
		return
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(3)
}

func run(args []string) error {
	if len(args) == 0 {
		_, err := io.Copy(os.Stdout, os.Stdin)
		return err
	}
	listener, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go io.Copy(conn, conn)
		}
	}()
	fmt.Println("listening")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// configure sets up the network device, as labs do.
func configure(n vm.Network) error {
	ns, err := netns.Current()
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := rtnl.In(ns).SetSysctl("net/ipv6/conf/"+vm.NetworkDevice+"/accept_dad", "0"); err != nil {
		return err
	}
	if err := rtnl.In(ns).Configure(vm.NetworkDevice, rtnl.DeviceConfig{Up: true, MTU: n.MTU,
		Addresses: n.Addresses}); err != nil {
		return err
	}
	return rtnl.In(ns).AddDefaultRoutes(vm.NetworkDevice, n.Gateways)
}
