// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/cni/install"
	"mustang/internal/kube"
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
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := d.check(cmd.Flags().Changed); err != nil {
			return cli.Usage(err)
		}
		if d.kubeconfig == "" {
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
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
	return nil
}

// write writes the archive. An interrupted one leaves nothing.
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

// collect writes an archive, and returns its source and the number of missing files.
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
		summary += "\n" + count(n, "file", "files") + " could not be collected: missing.txt in the archive says why"
	}
	return summary, nil
}
