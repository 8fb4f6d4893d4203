// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/agent/status"
	"mustang/internal/cni"
	"mustang/internal/cni/install"
	"mustang/internal/kube"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// Runner runs a command line of this program within a context, and returns its exit code.
type Runner func(ctx context.Context, stdout, stderr io.Writer, args ...string) int

type dump struct {
	*cli.Config
	run     Runner
	output  string
	size    int64 // in MiB
	timeout time.Duration

	logs                            []string
	confDir, runDir, netnsOf        string
	kubeconfig, namespace, selector string // for a cluster, and the flags above for a node
}

// Sysdump returns the command sysdump.
func Sysdump(c *cli.Config, run Runner) *cobra.Command {
	d := dump{Config: c, run: run}
	cmd := &cobra.Command{
		Use:   "sysdump",
		Short: "Collect what a bug report needs into one archive: of this node, or of a cluster",
		Long: `Write an archive (tar.gz, readable by its owner alone) for a bug report: outputs of mustang's
commands, settings of the kernel and the network, the CNI configuration and records, the agent's
metrics, and its log with --log.

With --kubeconfig, from any machine, collect the same from each node of the cluster, with a command in
the agent's pod there. The archive then also has the pods' logs and the cluster's objects about Mustang.
That needs the right to create pods/exec, and to read the others.

Secrets are left out, and what looks like a password, token or key is replaced by REMOVED. Names and
addresses stay: look into the archive before you publish it. What could not be collected is listed in
its missing.txt, and the exit code stays 0.`,
		Example: "  mustang sysdump\n  mustang sysdump --kubeconfig ~/.kube/config -f cluster.tar.gz",
	}
	cmd.PreRunE = cli.Check(func([]string) error { return d.check(cmd.Flags().Changed) })
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.RequireRoot(cmd); err != nil && d.kubeconfig == "" {
			return err
		}
		return d.write(cmd.Context())
	}
	flags := cmd.Flags()
	flags.StringVarP(&d.output, "file", "f", "",
		"`file` to write, which must not exist; - is standard output; by default mustang-sysdump-TIME.tar.gz")
	flags.Int64Var(&d.size, "max-size", 256,
		"size of the archive before it is compressed, in `MiB`; files beyond it are left out")
	flags.DurationVar(&d.timeout, "timeout", 5*time.Minute, "longest time for all; what is left then is missing")
	flags.StringArrayVar(&d.logs, "log", nil, "`file` with the agent's log; repeat for more")
	flags.StringVar(&d.confDir, "cni-conf-dir", install.DefaultConfDir, "`directory` with CNI configurations")
	AddRunDir(flags, &d.runDir)
	AddNodeNamespace(flags, &d.netnsOf)
	flags.StringVar(&d.kubeconfig, "kubeconfig", "",
		"`file` with the address of the API server and credentials: collect from all nodes")
	flags.StringVar(&d.namespace, "namespace", "kube-system", "`namespace` of the agent's DaemonSet")
	flags.StringVar(&d.selector, "selector", "app.kubernetes.io/name=mustang", "`labels` of the agent's pods")
	return cmd
}

func (d dump) check(changed func(flag string) bool) error {
	switch {
	case d.size <= 0:
		return errors.New("--max-size: want more than 0")
	case d.timeout <= 0:
		return errors.New("--timeout: want more than 0")
	case changed("kubeconfig") && d.kubeconfig == "":
		return errors.New("--kubeconfig: empty")
	}
	flags, why := []string{"namespace", "selector"}, "--kubeconfig is missing: it is for a cluster"
	if d.kubeconfig != "" {
		flags, why = []string{"log", "cni-conf-dir", "run-dir", "netns"},
			"it is for this node, and --kubeconfig for a cluster"
	}
	if i := slices.IndexFunc(flags, changed); i >= 0 {
		return fmt.Errorf("--%s: %s", flags[i], why)
	}
	if err := kube.CheckSelector(d.selector); err != nil {
		return fmt.Errorf("--selector %q: %w", d.selector, err)
	}
	for _, path := range d.logs {
		in, err := openRegular(path)
		if err != nil {
			return fmt.Errorf("--log: %w", err)
		}
		_ = in.Close()
	}
	return cli.WithNamespace(d.netnsOf, func(*netns.Namespace) error { return nil })
}

func (d dump) write(ctx context.Context) error {
	if d.output == "-" {
		_, err := d.collect(ctx, d.Stdout)
		return err
	}
	name := cmp.Or(d.output, time.Now().UTC().Format("mustang-sysdump-20060102-150405.tar.gz"))
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	summary, err := d.collect(ctx, file)
	size, seekErr := file.Seek(0, io.SeekCurrent)
	if err := errors.Join(err, seekErr, file.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return d.Printf("%s: %d KiB, of %s\n", name, (size+1023)>>10, summary)
}

func (d dump) collect(ctx context.Context, to io.Writer) (summary string, err error) {
	within, cancel := context.WithTimeoutCause(ctx, d.timeout,
		fmt.Errorf("not done within %s: --timeout sets another limit", d.timeout))
	defer cancel()
	a := newArchive(to, d.size<<20, itemTime)
	if summary = "this node"; d.kubeconfig == "" {
		d.node(within, a)
	} else {
		summary, err = d.cluster(within, a)
	}
	if err = cmp.Or(ctx.Err(), err); err == nil {
		err = a.close()
	}
	if err != nil {
		return "", fmt.Errorf("no archive: %w", err)
	}
	if n := len(a.missing); n > 0 {
		summary += "\n" + count(n, "file", "files") + " could not be collected: missing.txt in the archive has the reasons"
	}
	return summary, nil
}

const itemTime = 30 * time.Second // for a file

var commandLines = []string{
	"version", "status", "status -o json", "agent status", "agent status --wrong", "agent status -o json", "svc ls",
	"svc ls -o json", "ep ls", "ep ls -o json", "policy ls", "policy ls -o json", "uplink ls", "socket ls", "counters",
	"conntrack stats", "conntrack timeouts", "links", "links -o json", "probe",
}

var files = []string{
	"/etc/os-release", "/proc/version", "/proc/uptime", "/proc/loadavg", "/proc/meminfo", "/proc/cpuinfo", "/proc/modules",
	"/proc/mounts", "/proc/self/cgroup", "/proc/net/sockstat", "/proc/net/softnet_stat", "/proc/net/netstat",
	"/proc/net/snmp", "/proc/net/dev", "/proc/net/nf_conntrack_stat",
}

var sysctls = []string{ // patterns below /proc/sys
	"net/ipv4/ip_forward", "net/ipv4/conf/*/rp_filter", "net/ipv4/conf/*/forwarding", "net/ipv4/conf/*/proxy_arp",
	"net/ipv6/conf/*/forwarding", "net/ipv6/conf/*/disable_ipv6", "net/ipv6/conf/*/accept_ra", "net/bridge/*",
	"net/core/bpf_jit_*", "kernel/unprivileged_bpf_disabled", "net/netfilter/nf_conntrack_count",
	"net/netfilter/nf_conntrack_max", "net/ipv4/ip_local_port_range", "net/ipv4/neigh/default/gc_thresh*", "net/ipv4/vs/*",
	"user/max_net_namespaces",
}

// node collects from this node. From the directory of CNI configurations it reads nothing else: kubeconfigs lie there.
func (d dump) node(ctx context.Context, a *archive) {
	records := cmp.Or(d.Getenv("MUSTANG_CNI_RUN_DIR"), cni.DefaultRunDir)
	state := cmp.Or(d.Getenv("MUSTANG_CNI_STATE_DIR"), cni.DefaultStateDir)
	for _, line := range commandLines {
		name, isJSON := strings.CutSuffix(line, " -o json")
		name = "commands/" + strings.ReplaceAll(name, " ", "-") + map[bool]string{true: ".json", false: ".txt"}[isJSON]
		a.collect(ctx, name, func(ctx context.Context, to io.Writer) error { return d.command(ctx, to, line) })
	}
	paths := map[string][]string{"files": slices.Concat(files, d.logs)}
	for _, pattern := range []string{
		d.confDir + "/*.conflist", d.confDir + "/*.conf", d.confDir + "/*.json", records + "/*/attachments/*.record",
		records + "/*/network.json",
	} {
		found, _ := filepath.Glob(pattern) // the pattern is good
		paths["cni"] = append(paths["cni"], found...)
	}
	for _, dir := range []string{"files", "cni"} {
		for _, path := range paths[dir] {
			a.collect(ctx, filepath.Join(dir, path), func(_ context.Context, to io.Writer) error {
				in, err := openRegular(path)
				if err != nil {
					return err
				}
				defer in.Close()
				_, err = io.Copy(to, in)
				return err
			})
		}
	}
	for name, do := range map[string]func(context.Context, io.Writer) error{
		"sysctls.txt": sysctlValues,
		"network.txt": func(_ context.Context, to io.Writer) error {
			return cli.WithNamespace(d.netnsOf, func(ns *netns.Namespace) error { return rtnl.In(ns).WriteTables(to) })
		},
		"pins.txt":      func(_ context.Context, to io.Writer) error { return trees(to, d.BPFRoot) },
		"cni/files.txt": func(_ context.Context, to io.Writer) error { return trees(to, d.confDir, records, state) },
		"metrics.txt": func(ctx context.Context, to io.Writer) error {
			text, err := status.Ask(ctx, d.runDir, "/metrics", maxFile)
			if err == nil {
				_, err = to.Write(text)
			}
			return err
		},
	} {
		a.collect(ctx, name, do)
	}
}

func (d dump) command(ctx context.Context, to io.Writer, line string) error {
	args := append(strings.Fields(line), "--bpf-root", d.BPFRoot)
	if strings.HasPrefix(line, "agent ") || strings.HasPrefix(line, "svc ls") {
		args = append(args, "--run-dir", d.runDir)
	}
	var stdout, stderr bytes.Buffer
	code := d.run(ctx, &stdout, &stderr, args...)
	warning := strings.TrimSpace(stderr.String())
	if code != 0 {
		warning = fmt.Sprintf("exit code %d: %s", code, warning)
	}
	if code != 0 && stdout.Len() == 0 { // with output, the code stands for the faults that it names
		return errors.New(warning)
	}
	if warning != "" && !strings.HasSuffix(line, " -o json") {
		fmt.Fprintln(&stdout, warning)
	}
	_, err := stdout.WriteTo(to)
	return err
}

func openRegular(path string) (*os.File, error) {
	in, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe would wait for its writer
	if err != nil {
		return nil, err
	}
	if info, err := in.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = in.Close()
		return nil, cmp.Or(err, fmt.Errorf("%s is not a regular file", path))
	}
	return in, nil
}

func trees(to io.Writer, dirs ...string) (err error) {
	for _, dir := range dirs {
		err = errors.Join(err, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := entry.Info()
			if err == nil {
				_, err = fmt.Fprintf(to, "%s %8d %s %q\n", info.Mode(), info.Size(), info.ModTime().UTC().Format(time.RFC3339),
					path)
			}
			return err
		}))
	}
	return err
}

func sysctlValues(_ context.Context, to io.Writer) error {
	for _, pattern := range sysctls {
		paths, _ := filepath.Glob(filepath.Join("/proc/sys", pattern)) // the pattern is good
		for _, path := range paths {
			value, err := os.ReadFile(path)
			if err != nil {
				value = []byte(err.Error())
			}
			fmt.Fprintf(to, "%s = %s\n", strings.TrimPrefix(path, "/proc/sys/"), bytes.TrimSpace(value))
		}
	}
	return nil
}

const (
	container = "agent"          // in the agent's pod
	atOnce    = 4                // nodes
	podTime   = 90 * time.Second // for a node
	podSize   = 32               // for a node, in MiB
	logLines  = 20_000
	logBytes  = 8 << 20
)

// cluster collects from all nodes of a cluster. It returns the number of nodes whose agents' pods delivered.
func (d dump) cluster(ctx context.Context, a *archive) (of string, err error) {
	client, err := kube.Connect(d.kubeconfig)
	if err != nil {
		return "", err
	}
	pods, err := client.PodsOf(ctx, d.namespace, d.selector)
	if err != nil {
		return "", err // no cluster, or no rights
	}
	if len(pods) == 0 {
		return "", fmt.Errorf("namespace %s lacks pods with labels %s", d.namespace, d.selector)
	}
	in, labels := "/namespaces/"+url.PathEscape(d.namespace), "labelSelector="+url.QueryEscape(d.selector)
	ofAgents := "fieldSelector=" + url.QueryEscape("source=mustang-agent")
	for name, request := range map[string]string{
		"version": "/version", "nodes": "/api/v1/nodes?limit=5000", "pods": "/api/v1" + in + "/pods?" + labels,
		"daemonsets":       "/apis/apps/v1" + in + "/daemonsets?" + labels,
		"events-of-agents": "/api/v1/events?limit=1000&" + ofAgents, "events": "/api/v1" + in + "/events?limit=1000",
	} {
		a.collect(ctx, "cluster/"+name+".json", func(ctx context.Context, to io.Writer) error {
			return client.Get(ctx, request, to)
		})
	}
	var all errgroup.Group
	all.SetLimit(atOnce)
	var done atomic.Int64
	for _, pod := range pods {
		all.Go(func() error {
			if err := d.pod(ctx, client, a, pod); err != nil {
				a.lack(dirOf(pod), err)
			} else {
				done.Add(1)
			}
			return nil
		})
	}
	_ = all.Wait() // they return none
	if n := int(done.Load()); n < len(pods) {
		return fmt.Sprintf("%d of %d nodes", n, len(pods)), nil
	}
	return count(len(pods), "node", "nodes"), nil
}

func dirOf(pod kube.PodOn) string {
	return path.Join("nodes", path.Base("/"+cmp.Or(pod.Node, pod.Name)))
}

func (d dump) pod(ctx context.Context, client *kube.Client, a *archive, pod kube.PodOn) error {
	within, cancel := context.WithTimeoutCause(ctx, podTime, fmt.Errorf("not done within %s", podTime))
	defer cancel()
	logs := map[string]string{"agent.log": ""}
	if pod.Restarted {
		logs["agent-before.log"] = "&previous=true"
	}
	for name, more := range logs {
		request := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/log?container=%s&tailLines=%d&limitBytes=%d%s",
			url.PathEscape(d.namespace), url.PathEscape(pod.Name), container, logLines, logBytes, more)
		a.collect(within, dirOf(pod)+"/"+name, func(ctx context.Context, to io.Writer) error {
			return client.Get(ctx, request, to)
		})
	}
	from, to := io.Pipe()
	defer from.Close()
	go func() {
		var stderr bytes.Buffer
		run := kube.ExecCommand{Namespace: d.namespace, Pod: pod.Name, Container: container, Words: []string{"mustang",
			"sysdump", "-f", "-", "--max-size", fmt.Sprint(podSize), "--timeout", (podTime - itemTime).String()}}
		err := client.Exec(within, run, kube.ExecStreams{Stdout: to, Stderr: &stderr})
		if err != nil && within.Err() == nil && stderr.Len() > 0 { // otherwise more may be written yet
			err = fmt.Errorf("%w: %s", err, &stderr)
		}
		to.CloseWithError(err)
	}()
	return a.merge(dirOf(pod), from)
}
