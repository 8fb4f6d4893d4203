// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"mustang/cmd/mustang/internal/cli"
	"mustang/cmd/mustang/internal/node"
	"mustang/internal/cni"
	"mustang/internal/cni/install"
	"mustang/internal/cni/netconf"
	"mustang/internal/cni/record"
	"mustang/internal/nodenet"
)

// Values of --encrypt.
const encryptOff, encryptOn = "off", "on"

// Values of --link-change.
const linkRefuse, linkDrain = "refuse", "drain"

// agentNodes holds the agent's flags for the pod network, and writes its configuration for the container runtime.
type agentNodes struct {
	options nodenet.Options
	place   install.Place
	pods    install.Network
	proxied bool   // services off whatever the link
	encrypt string // off or on
	key     string // the public key; empty: off
	change  string // the reaction to attached pods of another link mode
	runDir  string // of the CNI plugin's records
	bpfRoot string // of the datapath
}

func (a *agentNodes) addFlags(flags *pflag.FlagSet) {
	a.options.Routing, a.place.ConfName, a.pods.Name = nodenet.Auto, install.DefaultConfName, "mustang"
	flags.TextVar(&a.options.Routing, "routing", nodenet.Auto,
		"how pods reach pods of other nodes: native over a segment that both nodes are on, vxlan, auto (native where it "+
			"can be), or off")
	flags.Uint16Var(&a.options.Port, "vxlan-port", nodenet.DefaultPort, "UDP `port` of VXLAN, the same on all nodes")
	flags.Var(cli.OneOf(&a.encrypt, encryptOff, encryptOn), "encrypt",
		"off, or on: WireGuard encrypts packets between pods of different nodes; needs --routing=auto and --masquerade")
	flags.Uint16Var(&a.options.Encryption.Port, "encrypt-port", nodenet.WireGuardPort,
		"UDP `port` of WireGuard, the same on all nodes")
	flags.BoolVar(&a.options.Masquerade, "masquerade", true, "masquerade traffic from pods to outside the cluster")
	flags.Var(cli.List(&a.options.Kept, netip.ParsePrefix, "a prefix like 10.0.0.0/8"), "masquerade-exclude",
		"`prefix` of destinations that get packets with the pod's address, as pods of all nodes do; repeat for more")
	flags.StringVar(&a.place.ConfDir, "cni-conf-dir", install.DefaultConfDir,
		"`directory` for the CNI configuration of this node's pods; empty: others write it")
	flags.StringVar(&a.place.BinDir, "cni-bin-dir", "",
		"`directory` for the CNI plugins mustang-cni and loopback; empty: others put them there")
	flags.StringVar(&a.pods.Link, "link", netconf.LinkAuto, "link `mode` of pods in the CNI configuration")
	flags.Var(cli.OneOf(&a.change, linkRefuse, linkDrain), "link-change",
		"refuse: keep the CNI configuration while new pods might not reach existing ones; drain: write it, and you drain "+
			"the node")
	flags.StringVar(&a.pods.Services, "services", "both",
		"how pods reach services, in the CNI configuration: socket, tc, both or off")
	flags.BoolVar(&a.proxied, "allow-services-off", false,
		"allow --services=off with links whose pods bypass the host: kube-proxy's cluster IPs then fail between pods of one node")
	flags.StringVar(&a.pods.CNIVersion, "cni-version", install.DefaultVersion, "`version` of the CNI configuration")
}

func (a *agentNodes) check() error {
	for _, prefix := range a.options.Kept {
		if prefix != prefix.Masked() {
			return fmt.Errorf("--masquerade-exclude %q: it has host bits: want %s", prefix, prefix.Masked())
		}
	}
	for flag, dir := range map[string]string{"cni-bin-dir": a.place.BinDir, "cni-conf-dir": a.place.ConfDir} {
		if dir != "" && !filepath.IsAbs(dir) {
			return fmt.Errorf("--%s %q: want an absolute path", flag, dir)
		}
	}
	switch {
	case a.options.Port == 0:
		return errors.New("--vxlan-port: 0 is not a port: want one from 1 to 65535")
	case a.options.Encryption.Port == 0:
		return errors.New("--encrypt-port: 0 is not a port: want one from 1 to 65535")
	case a.encrypt == encryptOn && a.options.Routing != nodenet.Auto:
		return fmt.Errorf("--encrypt=on needs --routing=auto (chart: agent.routing=auto), not %s", a.options.Routing)
	case a.encrypt == encryptOn && (!a.options.Masquerade || len(a.options.Kept) > 0):
		return errors.New("--encrypt=on needs --masquerade without --masquerade-exclude: WireGuard takes no answers from " +
			"node addresses to pods")
	case a.encrypt == encryptOn && netconf.CheckEncrypted(a.pods.Link) != nil:
		return fmt.Errorf("--encrypt=on: %w", netconf.CheckEncrypted(a.pods.Link))
	case a.place.ConfDir == "":
		return nil
	}
	pods := a.pods
	pods.Subnets = []netip.Prefix{netip.MustParsePrefix(defaultSubnet)}
	if _, err := pods.Conflist(); err != nil {
		return ofFlag(err)
	}
	if err := netconf.CheckProxied(a.pods.Link, a.pods.Services); err != nil && !a.proxied {
		return fmt.Errorf("%w: choose another --link or other --services, or allow it by --allow-services-off", err)
	}
	return nil
}

// prepare completes the options once the flags are checked. With --encrypt=on it reads the key in a directory.
func (a *agentNodes) prepare(cniSocket, dir string) (err error) {
	a.pods.AwaitsAgent = cniSocket != nothing && a.pods.Services != netconf.ServicesOff
	if a.encrypt != encryptOn {
		return nil
	}
	if err = nodenet.ProbeWireGuard(); err == nil {
		a.options.Encryption.Key, err = nodenet.LoadKey(dir)
	}
	if err != nil {
		return fmt.Errorf("--encrypt=on: %w", err)
	}
	a.options.Routing, a.key = nodenet.WireGuard, a.options.Encryption.Key.Public()
	return nil
}

// warnings adds the nodes that WireGuard cannot reach to apart.
func (a *agentNodes) warnings(network *nodenet.Network) func() []string {
	return func() []string {
		all := a.apart()
		late, err := network.WithoutHandshake()
		if err != nil {
			all = append(all, err.Error())
		}
		if len(late) > 0 {
			all = append(all, fmt.Sprintf("no WireGuard handshake within %s: %s", nodenet.LateHandshake, cli.FirstOf(late, 20)))
		}
		return all
	}
}

// apart lists the links of pods that new pods may be unable to reach, and pods whose link is unknown.
func (a *agentNodes) apart() (all []string) {
	if a.place.ConfDir == "" {
		return nil
	}
	store := record.Store{Root: cmp.Or(a.runDir, cni.DefaultRunDir)}
	owners := store.Owners(a.pods.Name)
	records, _ := store.List("") // records that can be read
	of := map[string]int{}
	for _, r := range records {
		if r.Network != a.pods.Name {
			continue
		}
		owners = slices.DeleteFunc(owners, func(o record.Owner) bool { return o == r.Owner })
		if r.Link != "" && !netconf.Together(r.Link, a.pods.Link) && !node.IsGone(r) {
			of[r.Link]++
		}
	}
	for _, o := range owners {
		all = append(all, fmt.Sprintf("record %s cannot be read: run DEL, or remove it", store.Path(a.pods.Name, o)))
	}
	for _, link := range slices.Sorted(maps.Keys(of)) {
		all = append(all, fmt.Sprintf("pods with link %s: %d; new pods with link %s may not reach them: drain the node", link,
			of[link], a.pods.Link))
	}
	return all
}

// Attach writes the plugins and the CNI configuration, and removes the gateways of former ranges. Without a directory
// for the configuration it writes the plugins alone.
func (a *agentNodes) Attach(ctx context.Context, ranges []netip.Prefix, mtu int) error {
	if a.place.ConfDir == "" {
		return a.install(ctx, nil)
	}
	if apart := a.apart(); a.change == linkRefuse && len(apart) > 0 {
		return fmt.Errorf("--link=%s is not in force without --link-change=%s: %s", a.pods.Link, linkDrain,
			strings.Join(apart, "; "))
	}
	pods := a.pods
	pods.Subnets, pods.MTU = ranges, mtu
	conflist, err := pods.Conflist()
	if err != nil {
		return err
	}
	if err := a.install(ctx, conflist); err != nil {
		return err
	}
	former := cni.Plugin{RunDir: a.runDir, BPFRoot: a.bpfRoot}
	if err := former.RetireGateways(a.options.Host, a.pods.Name, ranges); err != nil {
		return err
	}
	before, err := a.place.Before()
	if err == nil && len(before) > 0 {
		err = fmt.Errorf("pods get another network: in %s, %s sorts before %s", a.place.ConfDir, strings.Join(before, ", "),
			a.place.ConfName)
	}
	return err
}

// install writes the files for which there is a directory.
func (a *agentNodes) install(ctx context.Context, conflist []byte) (err error) {
	plugin := ""
	if a.place.BinDir != "" {
		if plugin, err = (&cniPlace{}).source(); err != nil {
			return err
		}
	}
	a.place.Client = true
	_, err = a.place.Install(ctx, plugin, conflist, false)
	return err
}
