// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// plugins are the packages of the reference plugins, which containernetworking maintains.
var plugins = []string{"ipam/host-local", "main/bridge", "main/loopback", "meta/portmap"}

// BuildPeers builds flannel and the reference plugins into dir, from their module below source.
func (s Programs) BuildPeers(ctx context.Context, source, dir string) error {
	list := []program{{"flannel", "", "./flannel"}}
	for _, p := range plugins {
		list = append(list, program{filepath.Base(p), "", "github.com/containernetworking/plugins/plugins/" + p})
	}
	for _, p := range list {
		p.module = filepath.Join(source, "peers")
		if err := s.compile(ctx, p, filepath.Join(dir, p.name)); err != nil {
			return err
		}
	}
	return nil
}

// podRange has all pods of a peer.
const podRange = "10.199.0.0/16"

// kubeProxy is kube-proxy's configuration. A namespace cannot set the size of the connection table.
const kubeProxy = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
clientConnection: {kubeconfig: %s}
clusterCIDR: ` + podRange + `
hostnameOverride: %s
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// installPeer installs the plugins, what routes between nodes, and kube-proxy, as processes of the nodes.
func (c *Cluster) installPeer() error {
	for _, n := range c.nodes {
		mtu, err := 0, n.copyPlugins()
		switch {
		case err != nil:
		case c.Peer == "flannel":
			mtu, err = n.startFlannel()
		default:
			err = n.routes()
		}
		config := n.path("kube-proxy.yaml")
		if err = errors.Join(err, n.configure(mtu), os.WriteFile(config, fmt.Appendf(nil, kubeProxy, c.Proxy,
			c.Kubeconfig(), n.name), 0o600)); err == nil {
			err = n.daemon(c.Programs.Path("kube-proxy"), "--config="+config)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
	}
	return nil
}

func (n *node) copyPlugins() error {
	for _, p := range plugins {
		name := filepath.Base(p)
		data, err := os.ReadFile(filepath.Join(n.c.Peers, name))
		if err == nil {
			err = os.WriteFile(n.path("cni-bin", name), data, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// startFlannel starts flannel, and returns the MTU that it computes.
func (n *node) startFlannel() (mtu int, err error) {
	backend := map[string]string{"native": "host-gw", "vxlan": "vxlan"}[n.c.Nodes]
	config, subnet := n.path("net-conf.json"), n.path("subnet.env")
	text := fmt.Sprintf(`{"Network": %q, "EnableNFTables": %t, "Backend": {"Type": %q}}`, podRange,
		n.c.Proxy == "nftables", backend)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return 0, err
	}
	if _, err := n.ranges(); err != nil { // flannel ends without them
		return 0, err
	}
	if err := n.daemon(filepath.Join(n.c.Peers, "flannel"), n.name, n.c.Kubeconfig(), config, subnet); err != nil {
		return 0, err
	}
	err = n.c.await(time.Minute, func() error {
		data, err := os.ReadFile(subnet)
		if err != nil {
			return err
		}
		_, value, _ := strings.Cut(string(data), "FLANNEL_MTU=")
		_, err = fmt.Sscan(value, &mtu)
		return err
	})
	return mtu, err
}

// routes adds routes to the pods of the other nodes.
func (n *node) routes() error {
	for _, other := range n.c.nodes {
		if other == n {
			continue
		}
		ranges, err := other.ranges()
		if err != nil {
			return err
		}
		if err := ip(n.ns, "route add "+ranges[0]+" via "+other.addrs[0]); err != nil {
			return err
		}
	}
	return nil
}

// configure writes the list of plugins, with the values that flannel's own plugin gives to bridge. MTU 0 is the
// device's.
func (n *node) configure(mtu int) error {
	ranges, err := n.ranges()
	if err != nil {
		return err
	}
	type object = map[string]any
	data, err := json.Marshal(object{"cniVersion": "1.0.0", "name": "pods", "plugins": []object{
		{"type": "bridge", "bridge": "cni0", "mtu": mtu, "isDefaultGateway": true, "hairpinMode": true, "ipam": object{
			"type": "host-local", "ranges": [][]object{{{"subnet": ranges[0]}}}, "routes": []object{{"dst": podRange}}}},
		{"type": "portmap", "capabilities": object{"portMappings": true}},
	}})
	if err != nil {
		return err
	}
	return os.WriteFile(n.path("cni-conf", "10-pods.conflist"), data, 0o600)
}
