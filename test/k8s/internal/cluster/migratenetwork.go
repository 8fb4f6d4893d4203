// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
)

// enter has new pods of a drained node attached by Mustang. Without flannel's bridge, the pods that are there have no
// network until they are recreated.
func (m *migration) enter(n *node) error {
	if !m.network {
		return n.chain(true)
	}
	m.stop("pod " + n.name)
	return errors.Join(os.Remove(n.path("cni-conf", peerList)), n.run("ip", "link", "del", "cni0"))
}

// leave has new pods of a drained node attached without Mustang. The routes become flannel's.
func (m *migration) leave(n *node) error {
	if !m.network {
		return n.chain(false)
	}
	m.stop("pod " + n.name)
	return inOrder(
		func() error { return n.run("sh", "-ec", toFlannel) },
		func() error { return n.run(m.Program, "agent", "cleanup", "--all", "--force") },
		func() error { return n.configure(m.mtu) },
	)
}

// entry is the page's entry for the list of the other plugin.
const entry = `{"type": "mustang-cni", "chained": true, "services": "both", "policies": "agent"}`

// chain adds the entry to the list, or removes it.
func (n *node) chain(on bool) error {
	path := n.path("cni-conf", peerList)
	data, err := os.ReadFile(path)
	var list map[string]any
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	plugins, _ := list["plugins"].([]any)
	plugins = slices.DeleteFunc(plugins, func(p any) bool { return p.(map[string]any)["type"] == "mustang-cni" })
	if on {
		plugins = append(plugins, json.RawMessage(entry))
	}
	if err == nil {
		list["plugins"] = plugins
		data, err = json.Marshal(list)
	}
	if err == nil {
		err = os.WriteFile(path+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	return err
}

// toMustang and toFlannel hand the routes to pods of other nodes over, each in one step. The page has toMustang.
var toMustang = map[string]string{
	"vxlan": `ip route show dev flannel.1 | while read -r range _; do
ip route replace $range via ${range%/*} dev mst-vxlan onlink proto 109; done`,
	"native": `ip route show root ` + podRange + ` proto boot dev eth0 | while read -r range _ node; do
ip route replace $range via $node dev eth0 proto 109; done`,
}

const toFlannel = `ip route show root ` + podRange + ` proto 109 dev eth0 | while read -r range _ node; do
ip route replace $range via $node dev eth0; done`

// endFlannel ends flannel once it has no pods. Its device stays until no node sends packets to it.
func (m *migration) endFlannel() error {
	for _, n := range m.nodes {
		if err := n.end("flannel"); err != nil {
			return err
		}
	}
	for _, n := range m.nodes {
		if err := n.run("sh", "-ec", toMustang[m.Nodes]); err != nil {
			return err
		}
	}
	if m.Nodes == "native" {
		return nil
	}
	if err := m.set("agent.uplinks=null"); err != nil {
		return err
	}
	for _, n := range m.nodes {
		if err := n.run("ip", "link", "del", "flannel.1"); err != nil {
			return err
		}
	}
	return nil
}

// prepareBack has agents on labelled nodes alone, so that they leave node by node.
func (m *migration) prepareBack() error {
	err := m.set("nodeSelector.network=mustang")
	for _, n := range m.nodes {
		if err == nil && m.network {
			m.mtu, err = n.runFlannel()
		}
	}
	return err
}
