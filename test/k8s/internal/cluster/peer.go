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

// peerPrograms are the programs of networks, in modules below the directory peers.
var peerPrograms = map[string]program{
	"flannel":     {"flannel", "", "./flannel"},
	"multus":      {"multus", "multus", "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus"},
	"kube-router": {"kube-router", "kube-router", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"},
}

// BuildPeers builds the reference plugins and the programs of networks into dir, from their modules below source.
func (s Programs) BuildPeers(ctx context.Context, source, dir string, networks []string) error {
	var list []program
	for _, p := range plugins {
		list = append(list, program{filepath.Base(p), "", "github.com/containernetworking/plugins/plugins/" + p})
	}
	for _, network := range networks {
		if p, ok := peerPrograms[network]; ok {
			list = append(list, p)
		}
	}
	for _, p := range list {
		p.module = filepath.Join(source, "peers", p.module)
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
		err := n.copyPlugins()
		if err == nil {
			err = map[string]func() error{"flannel": n.startFlannel, "bridge": n.startBridge,
				"kube-router": n.startKubeRouter}[c.Peer]()
		}
		if err == nil {
			err = n.startProxy()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
	}
	return nil
}

// startProxy starts kube-proxy.
func (n *node) startProxy() error {
	config := n.path("kube-proxy.yaml")
	text := fmt.Appendf(nil, kubeProxy, n.c.Proxy, n.c.Kubeconfig(), n.name)
	if err := os.WriteFile(config, text, 0o600); err != nil {
		return err
	}
	return n.daemon(n.c.Programs.Path("kube-proxy"), "--config="+config)
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

// startFlannel starts flannel, and configures the bridge plugin with the MTU that flannel computes.
func (n *node) startFlannel() error {
	mtu, err := n.runFlannel()
	if err != nil {
		return err
	}
	return n.configure(mtu)
}

// runFlannel starts flannel, and returns the MTU that it computes.
func (n *node) runFlannel() (mtu int, err error) {
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

// startBridge configures the bridge plugin, and adds routes to the pods of the other nodes.
func (n *node) startBridge() error {
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
	return n.configure(0)
}

// kubeRouterPlugin is the configuration of kube-router's manifest, in which kube-router writes ranges and the MTU.
const kubeRouterPlugin = `{"cniVersion": "0.3.0", "name": "pods", "type": "bridge", "bridge": "kube-bridge",
"isDefaultGateway": true, "ipam": {"type": "host-local"}}`

// startKubeRouter starts kube-router. Its own Services need the kernel's IPVS, and its tunnels IPIP.
func (n *node) startKubeRouter() error {
	if _, err := n.ranges(); err != nil { // kube-router ends without them
		return err
	}
	return errors.Join(os.WriteFile(n.path("cni-conf", "10-kuberouter.conf"), []byte(kubeRouterPlugin), 0o600),
		n.daemon(filepath.Join(n.c.Peers, "kube-router"), "--kubeconfig="+n.c.Kubeconfig(), "--hostname-override="+n.name,
			"--run-service-proxy=false", "--enable-overlay=false", "--service-cluster-ip-range=10.198.0.0/16"))
}

// peerList is the name of the list of plugins of a peer.
const peerList = "10-flannel.conflist"

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
	return os.WriteFile(n.path("cni-conf", peerList), data, 0o600)
}
