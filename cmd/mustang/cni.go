// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/cmd/mustang/internal/node"
	"mustang/internal/cni"
	"mustang/internal/cni/install"
	"mustang/internal/cni/netconf"
	"mustang/internal/podlink"
)

const defaultSubnet = "10.77.0.0/16"

// cniPlace is the runtime's place for plugins and configurations, and the plugin to copy there.
type cniPlace struct {
	install.Place
	plugin string
}

func (p *cniPlace) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&p.BinDir, "bin-dir", install.DefaultBinDir, "plugin directory of the runtime")
	flags.StringVar(&p.ConfDir, "conf-dir", install.DefaultConfDir, "configuration directory of the runtime")
	flags.StringVar(&p.ConfName, "conf-name", install.DefaultConfName,
		"file name of the configuration; runtimes use the first by name")
	flags.StringVar(&p.plugin, "plugin", "",
		"path of the plugin (default: mustang-cni in the directory of mustang, or in ../lib/cni)")
}

func (p *cniPlace) check() error {
	for flag, dir := range map[string]string{"bin-dir": p.BinDir, "conf-dir": p.ConfDir} {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("--%s %q: want an absolute path", flag, dir)
		}
	}
	if err := p.Place.Check(); err != nil {
		return fmt.Errorf("--conf-name: %w", err)
	}
	return nil
}

func (p *cniPlace) source() (string, error) {
	if p.plugin != "" {
		return p.plugin, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the plugin: %w", err)
	}
	return install.FindPlugin(self)
}

type cniInstallation struct {
	cniPlace
	install.Network
	force bool
}

func (c *config) cniInstall() *cobra.Command {
	var i cniInstallation
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install the CNI plugin and a network for container runtimes",
		Long: `Install the CNI plugin for container runtimes, and then a network configuration that uses
it. Each file appears complete or not at all. If a step fails, the steps before it are
undone. Files of other projects are replaced with --force only.

Link auto selects the first of ` + strings.Join(netconf.AutoLinks(), ", ") + ` that this kernel supports,
which requires root.

The host takes the gateway address of the pod subnet: its first address, or --gateway. If
the network already has a router, give the host another address with --host-address.`,
		Example: `  mustang cni install --link auto --masquerade
  mustang cni install --link macvlan --parent eth1 --subnet 10.1.0.0/16 --subnet fd00:1::/64
  mustang cni install --link macvlan --parent eth1 --subnet 192.0.2.0/24 --gateway 192.0.2.1 --host-address 192.0.2.2
  mustang cni install --bin-dir /usr/lib/cni --cni-version 1.1.0`,
		PreRunE: cli.Check(func([]string) error {
			i.Connections = c.Connections
			return i.check()
		}),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.installCNI(cmd, i) },
	}
	i.addFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&i.Link, "link", netconf.LinkAuto, "link mode of the pods (see mustang probe), or auto")
	flags.StringVar(&i.Name, "name", "mustang", "name of the network")
	flags.StringVar(&i.Parent, "parent", "", "uplink of the host (default: the device of the default route)")
	flags.StringVar(&i.Bridge, "bridge", "", "name of the bridge, for link modes that use one")
	flags.IntVar(&i.MTU, "mtu", 0,
		"MTU of the pod devices in bytes; 0 is the MTU of the parent, but 1500 if that is larger")
	flags.StringVar(&i.Services, "services", "", "how pods reach services: socket, tc, both or off (default: socket)")
	flags.BoolVar(&i.Masquerade, "masquerade", false, "translate the source addresses of packets that leave the network")
	const want = "an address like 10.77.0.1"
	flags.Var(cli.Each(&i.Subnets, netip.ParsePrefix, "a prefix like "+defaultSubnet), "subnet",
		"subnet of the pods; once for each of IPv4 and IPv6")
	flags.Lookup("subnet").DefValue = defaultSubnet
	flags.Var(cli.Each(&i.Gateways, netip.ParseAddr, want), "gateway",
		"gateway of the subnet of its family; the host takes this address unless --host-address is set")
	flags.Var(cli.Each(&i.HostAddresses, netip.ParseAddr, want), "host-address",
		"address of the host in the subnet of its family; the gateway is then another router")
	flags.StringVar(&i.CNIVersion, "cni-version", install.DefaultVersion,
		"version of the CNI specification; 1.1.0 for runtimes that call STATUS and GC")
	flags.BoolVar(&i.force, "force", false, "replace files of other projects")
	flags.BoolVar(&i.DryRun, "dry-run", false, "print what would change, and change nothing")
	return cmd
}

// installCNI installs plugin and network, prints the changes, and notes if runtimes use another network.
func (c *config) installCNI(cmd *cobra.Command, i cniInstallation) error {
	plugin, err := i.source()
	if err != nil {
		return err
	}
	picked := ""
	if i.Link == netconf.LinkAuto {
		if err := cli.RequireRoot(cmd); err != nil {
			return fmt.Errorf("%w to probe link modes; otherwise set --link", err)
		}
		if i.Link, err = netconf.SelectLink(); err != nil {
			return err
		}
		picked = fmt.Sprintf("link auto is %s\n", i.Link)
	}
	conflist, err := i.Conflist()
	if err != nil {
		return ofFlag(err)
	}
	changes, err := i.Install(cmd.Context(), plugin, conflist, i.force)
	if err != nil {
		return foreign(err, "--force replaces it")
	}
	if i.DryRun {
		return c.printChanges(picked+"dry run; without --dry-run:\n", changes)
	}
	if err := c.printChanges(picked, changes); err != nil {
		return err
	}
	before, err := i.Before()
	if err != nil {
		return err
	}
	if len(before) > 0 {
		fmt.Fprintf(c.Stderr, "mustang: note: runtimes that use one network use %s/%s, whose name sorts first\n",
			i.ConfDir, cli.Printable(before[0]))
	}
	if os.Geteuid() != 0 {
		return nil
	}
	if err := c.canAttach(cmd.Context(), conflist); err != nil {
		fmt.Fprintf(c.Stderr, "mustang: note: pods cannot be attached yet: %s\n", oneLine(err))
	}
	return nil
}

// canAttach returns the plugin's answer to the verb STATUS.
func (c *config) canAttach(ctx context.Context, conflist []byte) error {
	config, err := install.PluginConfig(conflist)
	if err != nil {
		return err
	}
	plugged := cni.Plugin{
		StateDir: c.Getenv("MUSTANG_CNI_STATE_DIR"), RunDir: c.Getenv("MUSTANG_CNI_RUN_DIR"),
		BPFRoot: c.Getenv(cli.EnvBPFRoot),
	}
	return plugged.Status(ctx, cni.Request{Config: config})
}

func (c *config) cniStatus() *cobra.Command {
	var place cniPlace
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show the installed plugin and network, and whether pods can be attached",
		Long:    "Show the installed plugin and network, and whether pods can be attached. The exit code is 1 if not.",
		Example: "  mustang cni status",
		PreRunE: cli.Check(func([]string) error { return place.check() }),
	}
	cmd.RunE = cli.AsRoot(func(ctx context.Context, _ []string) error {
		conflist, err := place.Installed()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("not installed: %w; mustang cni install installs plugin and network", err)
		case err != nil:
			return foreign(err, "mustang cni install --force replaces it")
		}
		if err := c.Printf("plugin  %s\nnetwork %s\n", filepath.Join(place.BinDir, netconf.PluginType),
			place.Conf()); err != nil {
			return err
		}
		before, err := place.Before()
		if err != nil {
			return err
		} else if len(before) > 0 {
			return fmt.Errorf("runtimes use %s instead: its name sorts first", before[0])
		}
		if err := c.canAttach(ctx, conflist); err != nil {
			return fmt.Errorf("pods cannot be attached: %w", err)
		}
		return c.Printf("pods can be attached\n")
	})
	place.addFlags(cmd)
	return cmd
}

func foreign(err error, then string) error {
	if of := (*install.ForeignError)(nil); errors.As(err, &of) {
		return fmt.Errorf("%s is not a file of Mustang (%w): %s", of.Path, of.Why, then)
	}
	return err
}

func (i *cniInstallation) check() error {
	if err := i.cniPlace.check(); err != nil {
		return err
	}
	if len(i.Subnets) == 0 {
		i.Subnets = []netip.Prefix{netip.MustParsePrefix(defaultSubnet)}
	}
	for _, p := range i.Subnets {
		if a := p.Addr(); a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.BitLen()-p.Bits() < 2 {
			return fmt.Errorf("--subnet %q: pods cannot have addresses of it, or too few: want a prefix like %s", p,
				defaultSubnet)
		}
	}
	if i.MTU != 0 && (i.MTU < minMTU || i.MTU > maxMTU) {
		return fmt.Errorf("--mtu %d: want 0 (parent's MTU) or %d to %d", i.MTU, minMTU, maxMTU)
	}
	if mode, err := podlink.Lookup(i.Link); err == nil && i.Bridge != "" && !mode.Traits().Bridge {
		return fmt.Errorf("--bridge %q: link %s has none", i.Bridge, i.Link)
	}
	_, err := i.Conflist()
	return ofFlag(err)
}

var flagOfKey = map[string]string{
	"cniVersion": "--cni-version", "name": "--name", "link": "--link", "parent": "--parent", "bridge": "--bridge",
	"mtu": "--mtu", "services": "--services", "masquerade": "--masquerade", "gateway": "--gateway",
	"hostAddresses": "--host-address", "ipam.ranges": "--subnet",
}

func ofFlag(err error) error {
	if err == nil {
		return nil
	}
	path, what, _ := strings.Cut(err.Error(), ": ")
	key, _, _ := strings.Cut(path, "[")
	flag, ok := flagOfKey[key]
	if !ok {
		return err
	}
	what = strings.NewReplacer("hostAddresses", "--host-address", "subnet of ipam.ranges", "--subnet").Replace(what)
	return fmt.Errorf("%s: %s", flag, what)
}

// The smallest MTU of IPv6 (RFC 8200), and the largest of a configuration, in bytes.
const minMTU, maxMTU = 1280, 65535

func (c *config) cniUninstall() *cobra.Command {
	var place cniPlace
	var force bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the network's configuration and the CNI plugin",
		Long: `Remove the network configuration, and then the plugin. If a file belongs to another project, nothing
is removed. A plugin that is not a copy, as the Debian package's, is left. Delete attached pods first:
their runtime needs the plugin to delete them. Without --force the command refuses until then.`,
		Example: "  mustang cni uninstall\n  mustang cni uninstall --bin-dir /usr/lib/cni",
		PreRunE: cli.Check(func([]string) error { return place.check() }),
		RunE: func(cmd *cobra.Command, _ []string) error {
			attached, err := node.Attached(cmp.Or(c.Getenv("MUSTANG_CNI_RUN_DIR"), cni.DefaultRunDir))
			if err != nil {
				return err
			}
			if len(attached) > 0 && !force {
				return fmt.Errorf("pods are attached, %d in all (%s): delete them first, or --force", len(attached),
					cli.FirstOf(attached, 3))
			}
			keep, _ := place.source() // without a source there is nothing to keep
			changes, err := place.Uninstall(cmd.Context(), keep)
			return errors.Join(c.printChanges("", changes), foreign(err, "nothing is removed"))
		},
	}
	place.addFlags(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "also with attached pods, which their runtime then cannot delete")
	return cmd
}

func (c *config) printChanges(text string, changes []install.Change) error {
	for _, change := range changes {
		text += change.String() + "\n"
	}
	_, err := io.WriteString(c.Stdout, text)
	return err
}
