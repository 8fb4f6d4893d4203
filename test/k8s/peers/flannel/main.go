// SPDX-License-Identifier: Apache-2.0

// Program flannel runs flannel's VXLAN and host-gw backends on a node, as flanneld --kube-subnet-mgr --ip-masq does.
// flanneld itself also links the SDKs of clouds.
//
//	flannel NODE KUBECONFIG NET_CONF SUBNET_FILE
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/hostgw"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan"
	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"github.com/flannel-io/flannel/pkg/trafficmngr"
	"github.com/flannel-io/flannel/pkg/trafficmngr/iptables"
	"github.com/flannel-io/flannel/pkg/trafficmngr/nftables"
)

// resync is how often flanneld compares its rules by default, in seconds.
const resync = 5

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: flannel NODE KUBECONFIG NET_CONF SUBNET_FILE")
		os.Exit(2)
	}
	err := os.Setenv("NODE_NAME", os.Args[1]) // the subnet manager reads it
	if err == nil {
		err = run(ctx, os.Args[2], os.Args[3], os.Args[4])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "flannel:", err)
		os.Exit(1)
	}
}

// run runs the backend that a file configures until ctx ends.
func run(ctx context.Context, kubeconfig, netConf, subnetFile string) error {
	manager, err := kube.NewSubnetManager(ctx, "", kubeconfig, "flannel.alpha.coreos.com", netConf, true)
	if err != nil {
		return err
	}
	config, err := manager.GetNetworkConfig(ctx)
	if err != nil {
		return err
	}
	stack, err := ipmatch.GetIPFamily(config.EnableIPv4, config.EnableIPv6)
	if err != nil {
		return err
	}
	uplink, err := ipmatch.LookupExtIface("", "", "", stack, ipmatch.PublicIPOpts{})
	if err != nil {
		return err
	}
	kind, err := backend.NewManager(ctx, manager, uplink).GetBackend(config.BackendType)
	if err != nil {
		return err
	}
	var work sync.WaitGroup
	defer work.Wait()
	network, err := kind.RegisterNetwork(ctx, &work, config)
	if err != nil {
		return err
	}
	lease := network.Lease()
	var rules trafficmngr.TrafficManager = &iptables.IPTablesManager{}
	if config.EnableNFTables {
		rules = &nftables.NFTablesManager{}
	}
	if err := rules.Init(ctx); err != nil {
		return err
	}
	if err := rules.SetupAndEnsureMasqRules(ctx, config.Network, ip.IP4Net{}, ip.IP4Net{}, config.IPv6Network,
		ip.IP6Net{}, ip.IP6Net{}, lease, resync, false); err != nil {
		return err
	}
	rules.SetupAndEnsureForwardRules(ctx, config.Network, config.IPv6Network, resync)
	if err := manager.HandleSubnetFile(subnetFile, config, true, lease.Subnet, lease.IPv6Subnet,
		network.MTU()); err != nil {
		return err
	}
	work.Go(func() { network.Run(ctx) })
	return manager.CompleteLease(ctx, lease, &work)
}
