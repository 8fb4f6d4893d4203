// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/agent/status"
	"mustang/internal/cni/install"
	"mustang/internal/netns"
	"mustang/internal/nodenet"
	"mustang/internal/pathprobe"
)

// The results of a check.
const (
	passed = "ok"
	noted  = "info"
	warned = "warn"
	failed = "fail"
)

// checkup is the result of a check: what was found, and what helps.
type checkup struct {
	Check  string `json:"check"`
	Result string `json:"result"`
	Found  string `json:"found,omitempty"`
	Do     string `json:"do,omitempty"`
}

// preflight checks whether an agent can serve a node.
type preflight struct {
	*cli.Config
	namespace, kubeconfig, runDir string
	peers                         []netip.AddrPort
	listen                        netip.AddrPort
	port                          uint16
	place                         install.Place

	host  *netns.Namespace
	found []checkup
	runs  bool // an agent serves the node already
	ipv6  bool // pods have IPv6 addresses, or the node does
}

// AgentPreflight returns the command agent preflight.
func AgentPreflight(c *cli.Config) *cobra.Command {
	p := preflight{Config: c, place: install.Place{ConfName: install.DefaultConfName}}
	var format string
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether this node can run an agent, and what the network does to packets between nodes",
		Long: `Check this node before Mustang is installed: features of the kernel, remains of kube-proxy and other
CNI plugins, ports, firewall and MTU. With --kubeconfig, also check the cluster. It changes nothing.

With --peer, also probe the path to a node where --listen runs: MTU, loss, TCP through VXLAN. Open
UDP ports 7178 and --vxlan-port between the nodes. Probe from one node at a time: a listener reads
2,000 packets a second at most. --listen answers anybody who reaches these ports, until Ctrl-C.

Exit codes: 0 nothing fails, 1 a check fails, 2 misused.`,
		Example: `  mustang agent preflight
  mustang agent preflight --listen 192.0.2.2     # on the other node
  mustang agent preflight --peer 192.0.2.2`,
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			return cli.WithNamespace(p.namespace, func(host *netns.Namespace) error {
				if p.host = host; p.listen.IsValid() {
					return pathprobe.Listen(ctx, p.end(p.listen), func() error {
						return c.Printf("listening at %v; on the other node: mustang agent preflight --peer %[1]v --vxlan-port %d\n",
							p.listen, p.port)
					})
				}
				return p.run(ctx, format)
			})
		}),
	}
	flags := cmd.Flags()
	cmd.PreRunE = cli.Check(func([]string) error { return p.check(flags.Changed) })
	const want = "an address that other nodes reach, like 192.0.2.2 or [2001:db8::2]:7178"
	flags.Var(cli.Each(&p.peers, parseNodeEnd, want), "peer", "`address` at which another node listens; repeat for more")
	flags.Var(cli.One(&p.listen, parseNodeEnd, want), "listen",
		"`address` of this node at which it answers --peer, until Ctrl-C")
	flags.StringVar(&p.kubeconfig, "kubeconfig", "", "`file` with the address of the API server and credentials: check "+
		"the cluster too")
	flags.Uint16Var(&p.port, "vxlan-port", nodenet.DefaultPort, "UDP `port` of VXLAN, the agent's")
	flags.StringVar(&p.place.ConfDir, "cni-conf-dir", install.DefaultConfDir, "`directory` for CNI configurations")
	AddNodeNamespace(flags, &p.namespace)
	AddRunDir(flags, &p.runDir)
	cli.AddOutput(cmd, &format)
	return cmd
}

func (p *preflight) check(changed func(flag string) bool) error {
	switch {
	case p.port == 0:
		return errors.New("--vxlan-port: 0 is not a port: want one from 1 to 65535")
	case changed("kubeconfig") && p.kubeconfig == "":
		return errors.New("--kubeconfig: empty")
	case !filepath.IsAbs(p.place.ConfDir):
		return fmt.Errorf("--cni-conf-dir %q: want an absolute path", p.place.ConfDir)
	}
	unused := []string{"peer", "kubeconfig", "cni-conf-dir", "run-dir", "output"}
	if i := slices.IndexFunc(unused, changed); p.listen.IsValid() && i >= 0 {
		return fmt.Errorf("--listen and --%s: the listening end only answers", unused[i])
	}
	return nil
}

// parseNodeEnd parses the address of a listening end, with its port or without.
func parseNodeEnd(text string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		var a netip.Addr
		a, err = netip.ParseAddr(text)
		at = netip.AddrPortFrom(a, pathprobe.DefaultPort)
	}
	a := at.Addr().Unmap()
	if err == nil && (a.Zone() != "" || !a.IsGlobalUnicast() || at.Port() == 0) {
		err = errors.New("not an address of a node")
	}
	return netip.AddrPortFrom(a, at.Port()), err
}

func (p *preflight) end(at netip.AddrPort) pathprobe.Options {
	return pathprobe.Options{Host: p.host, At: at, Port: p.port}
}

func (p *preflight) ok(check, what string, args ...any) {
	p.found = append(p.found, checkup{Check: check, Result: passed, Found: fmt.Sprintf(what, args...)})
}

func (p *preflight) warn(check, do, what string, args ...any) {
	p.found = append(p.found, checkup{check, warned, fmt.Sprintf(what, args...), do})
}

func (p *preflight) fail(check, do, what string, args ...any) {
	p.found = append(p.found, checkup{check, failed, fmt.Sprintf(what, args...), do})
}

func (p *preflight) run(ctx context.Context, format string) error {
	asked, cancel := context.WithTimeout(ctx, 2*time.Second)
	_, err := status.Ask(asked, p.runDir, "/process", maxStatus)
	cancel()
	if p.runs = !errors.Is(err, status.ErrNoAgent); p.runs && err != nil {
		p.warn("agent", "restart it", "it runs, but does not answer at %s", p.runDir)
	}
	type step struct {
		name string
		run  func(context.Context) error
	}
	steps := []step{{"kernel", p.checkKernel}, {"ports", p.checkPorts}, {"WireGuard", p.checkWireGuard},
		{"kube-proxy", p.checkProxy}, {"CNI", p.checkPlugins}, {"firewall", p.checkForwarding}}
	if p.kubeconfig != "" {
		steps = append(steps, step{"cluster", p.checkCluster})
	}
	for _, s := range append(steps, step{"MTU", p.checkMTU}) {
		if err := s.run(ctx); err != nil {
			p.fail(s.name, "", "%v", err)
		}
	}
	for _, peer := range p.peers {
		if err := p.checkPath(ctx, peer); err != nil {
			p.fail(fmt.Sprint("path to ", peer.Addr()), "", "%v", err)
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return p.print(format)
}

// print prints a table with short cells. Below it are the texts of checks that warn or fail.
func (p *preflight) print(format string) error {
	var texts strings.Builder
	var fails []string
	err := cli.PrintList(p.Stdout, format, p.found, cli.Table[checkup]{Key: "checks",
		Header: []string{"CHECK", "RESULT", "FOUND"},
		Row: func(c checkup) []any {
			if c.Result != warned && c.Result != failed {
				return []any{c.Check, c.Result, c.Found}
			}
			fmt.Fprintf(&texts, "\n%s: %s\n", c.Check, c.Found)
			if c.Do != "" {
				fmt.Fprintf(&texts, "  what helps: %s\n", c.Do)
			}
			return []any{c.Check, c.Result, "see below"}
		}})
	_, printed := io.WriteString(cli.PrintableLines(p.Stdout), texts.String())
	err = errors.Join(err, printed)
	for _, c := range p.found {
		if c.Result == failed {
			fails = append(fails, c.Check)
		}
	}
	if err == nil && len(fails) > 0 {
		err = fmt.Errorf("%s: %s", count(len(fails), "check fails", "checks fail"), strings.Join(fails, ", "))
	}
	return err
}

// checkPath probes the path to a node that listens.
func (p *preflight) checkPath(ctx context.Context, peer netip.AddrPort) error {
	path, err := pathprobe.Probe(ctx, p.end(peer))
	name := fmt.Sprint("path to ", peer.Addr())
	if errors.Is(err, pathprobe.ErrNoAnswer) {
		p.fail(name, fmt.Sprintf("there: mustang agent preflight --listen %v --vxlan-port %d; if it runs: open UDP port %d "+
			"between nodes", peer, p.port, peer.Port()), "%v", err)
		return nil
	}
	if path.Sent == 0 { // before all else
		return err
	}
	if text := path.SmallMTU(path.Peer.String()); text != "" {
		do := fmt.Sprintf("ip link set dev %s mtu %d on all nodes, or a larger MTU in the network", path.Device, path.Least())
		p.fail(name, do, "%s", text)
	} else {
		p.ok(name, "%d bytes, both ways", path.MTU)
	}
	if loss := fmt.Sprint("loss to ", path.Peer); path.Lost*100 > path.Sent*mostLost {
		p.warn(loss, fmt.Sprintf("probe from one node at a time, else the listener drops probes; then find where packets "+
			"are dropped: ip -s link show dev %s, ports of switches", path.Device),
			"%d of %d probes were lost", path.Lost, path.Sent)
	} else {
		p.ok(loss, "%d of %d probes", path.Lost, path.Sent)
	}
	if err != nil {
		p.fail(fmt.Sprint("VXLAN to ", path.Peer),
			"if the listener there has ended, start it again: mustang agent preflight --listen", "%v", err)
	} else {
		p.tunnelResult(path)
	}
	return nil
}

const mostLost = 5 // percentage of lost probes that is ok

func (p *preflight) tunnelResult(path pathprobe.Path) {
	tunnel, checksums := fmt.Sprint("VXLAN to ", path.Peer), fmt.Sprint("checksums to ", path.Peer)
	t := path.Tunnel
	if t.WrongThere+t.WrongHere > 0 {
		var ways []string
		if t.WrongThere > 0 {
			ways = append(ways, fmt.Sprintf("%d packets reached %v", t.WrongThere, path.Peer))
		}
		if t.WrongHere > 0 {
			ways = append(ways, fmt.Sprintf("%d packets from %v arrived", t.WrongHere, path.Peer))
		}
		result := p.fail
		if t.Stalled == nil { // they may be others' packets
			result = p.warn
		}
		result(checksums, fmt.Sprintf("on the sending node: ethtool -K %s tx-checksum-ip-generic off", path.Device),
			"%s with a wrong checksum in VXLAN: checksum offload is broken in the device or in the network",
			strings.Join(ways, ", "))
		return
	}
	if t.Stalled != nil {
		p.fail(tunnel, fmt.Sprintf("open UDP port %d between nodes; both ends need the same --vxlan-port", p.port),
			"a TCP stream in VXLAN stalls: %v", t.Stalled)
		return
	}
	p.ok(tunnel, "TCP, both ways")
	p.ok(checksums, "none is wrong")
}
