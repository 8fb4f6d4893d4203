// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/cgroup"
	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/linkinfo"
	"mustang/internal/netns"
	"mustang/internal/service"
)

// reach selects the sockets of a control group and network namespaces.
type reach struct {
	cgroup string
	netns  []string
}

func (r *reach) addFlags(cmd *cobra.Command, cgroup, netns string) {
	cmd.Flags().StringVar(&r.cgroup, "cgroup", "", "directory of a control group (version 2)"+cgroup)
	cmd.Flags().StringArrayVar(&r.netns, "netns", nil, "name or path of a network namespace; repeat for more"+netns)
}

func (r *reach) each(do func(*netns.Namespace) error) error {
	for _, name := range r.netns {
		if err := cli.WithNamespace(name, do); err != nil {
			return err
		}
	}
	return nil
}

func (c commands) socketAttach() *cobra.Command {
	var r reach
	cmd := &cobra.Command{
		Use:   "attach [--cgroup PATH] [--netns NAME|PATH ...]",
		Short: "Attach socket translation to a control group, and register network namespaces",
		Long: `Attach socket translation to a control group, and register network namespaces. The
sockets of a process are translated if it is in such a control group, or a child of it, and
in a registered namespace. mustang ep add registers the namespace of its pod.`,
		Example: `  mustang socket attach
  mustang socket attach --cgroup=/sys/fs/cgroup/kubepods.slice --netns=pod-a`,
		PreRunE: cli.Check(func([]string) error {
			if slices.Contains(r.netns, "") {
				return errors.New("--netns is empty")
			}
			return nil
		}),
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			if err := r.find(); err != nil {
				return err // before anything is pinned
			}
			return c.OnDatapath(ctx, func(d *datapath.Datapath) error { return c.attachTo(ctx, d, r) })
		}),
	}
	r.addFlags(cmd, "; all processes if not given", "; this one if not given")
	return cmd
}

func (r *reach) find() error {
	err := objects.ProbeSocket()
	if err == nil && r.cgroup == "" {
		r.cgroup, err = cgroup.Root()
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(r.cgroup); err != nil {
		return fmt.Errorf("open cgroup: %w", err)
	}
	if len(r.netns) == 0 {
		r.netns = []string{"/proc/self/ns/net"}
	}
	return r.each(func(*netns.Namespace) error { return nil })
}

func (c commands) attachTo(ctx context.Context, d *datapath.Datapath, r reach) error {
	change, err := d.Sockets().Attach(ctx, r.cgroup)
	if err == nil {
		err = c.Printf("cgroup %s %s\n", r.cgroup, change)
	}
	if err != nil {
		return err
	}
	return r.each(func(ns *netns.Namespace) error {
		change, err := d.Sockets().Put(ctx, service.CLI, ns, datapath.HostScope)
		if err == nil {
			err = c.Printf("host %s %s\n", ns.Name(), change)
		}
		return err
	})
}

func (c commands) socketDetach() *cobra.Command {
	var r reach
	cmd := &cobra.Command{
		Use:   "detach [--cgroup PATH] [--netns NAME|PATH|COOKIE ...]",
		Short: "Detach socket translation from a control group, or unregister network namespaces",
		Long: `Detach socket translation from a control group, or unregister network namespaces that
mustang socket attach registered. If neither is named, detach it from all control groups
and unregister all those namespaces. Namespaces of endpoints and of the CNI plugin stay
registered. Connected sockets stay connected.`,
		Example: `  mustang socket detach
  mustang socket detach --cgroup=/sys/fs/cgroup/kubepods.slice
  mustang socket detach --netns=pod-a`,
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			none := errors.New("socket translation is attached to nothing")
			return c.OnExisting(ctx, none, func(d *datapath.Datapath) error { return r.detach(ctx, d.Sockets()) })
		}),
	}
	r.addFlags(cmd, "", ", or the cookie of a deleted one")
	return cmd
}

// detach removes the objects of the flags, or everything. It continues after an error, as after a killed process.
func (r *reach) detach(ctx context.Context, sockets datapath.Sockets) (err error) {
	if r.cgroup != "" {
		err = sockets.Detach(ctx, r.cgroup)
	}
	for _, name := range r.netns {
		var cookie uint64
		nameErr := cli.WithNamespace(name, func(ns *netns.Namespace) (err error) {
			cookie, err = ns.Cookie()
			return err
		})
		if number, numberErr := strconv.ParseUint(name, 10, 64); numberErr == nil && errors.Is(nameErr, os.ErrNotExist) {
			cookie, nameErr = number, nil
		}
		if nameErr == nil {
			nameErr = sockets.Delete(ctx, service.CLI, cookie)
		}
		err = errors.Join(err, nameErr)
	}
	if r.cgroup == "" && len(r.netns) == 0 {
		groups, listErr := sockets.Cgroups(ctx)
		for _, group := range groups {
			err = errors.Join(err, sockets.Detach(ctx, group.Path))
		}
		err = errors.Join(err, listErr, sockets.DeleteAll(ctx, service.CLI))
	}
	return err
}

type scopeJSON struct {
	Cookie uint64 `json:"cookie"`
	Name   string `json:"name"`
	Owner  string `json:"owner"`
}

func (c commands) socketList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the control groups and network namespaces whose sockets are translated",
		Long: `List the control groups and network namespaces whose sockets are translated: namespaces of
hosts that mustang socket attach or the CNI plugin registered, and of the plugin's pods. Namespaces
of endpoints are not listed.`,
	}
	return cli.Listing(cmd, func(format string) error {
		groups := []datapath.Cgroup{}
		scopes := map[datapath.ScopeKind][]scopeJSON{datapath.HostScope: {}, datapath.PodScope: {}}
		_, err := cli.Read(c.Config, func(d *datapath.Datapath) (any, error) {
			found, err := d.Sockets().Cgroups(cmd.Context())
			groups = append(groups, found...)
			list, listErr := d.Sockets().List(cmd.Context())
			if err := errors.Join(err, listErr); err != nil || len(list) == 0 {
				return nil, err
			}
			return nil, byCookie(func(namespaces map[uint64]*netns.Namespace) error {
				for _, s := range list {
					item := scopeJSON{Cookie: s.Cookie, Owner: s.Owner.String()}
					if ns := namespaces[s.Cookie]; ns != nil {
						item.Name = ns.Name()
					}
					scopes[s.Kind] = append(scopes[s.Kind], item)
				}
				return nil
			})
		})
		switch {
		case err != nil:
			return err
		case format == "json":
			return cli.PrintJSON(c.Stdout, struct {
				Schema  int               `json:"schema"`
				Cgroups []datapath.Cgroup `json:"cgroups"`
				Hosts   []scopeJSON       `json:"hosts"`
				Pods    []scopeJSON       `json:"pods"`
			}{cli.Schema, groups, scopes[datapath.HostScope], scopes[datapath.PodScope]})
		}
		rows := cli.Convert(groups, func(g datapath.Cgroup) []any { return []any{"cgroup", g.ID, "", g.Path} })
		for _, kind := range []datapath.ScopeKind{datapath.HostScope, datapath.PodScope} {
			for _, s := range scopes[kind] {
				rows = append(rows, []any{kind, s.Cookie, s.Owner, s.Name})
			}
		}
		return cli.PrintTable(c.Stdout, []string{"KIND", "ID", "OWNER", "NAME"}, rows)
	})
}

func byCookie(do func(map[uint64]*netns.Namespace) error) error {
	snapshot, err := linkinfo.Take()
	if err != nil {
		return err
	}
	defer snapshot.Close()
	all := map[uint64]*netns.Namespace{}
	for _, ns := range snapshot.Namespaces() {
		if cookie, err := ns.Cookie(); err == nil {
			all[cookie] = ns
		}
	}
	return do(all)
}
