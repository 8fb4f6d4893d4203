// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// Selection selects Kubernetes' specs, and how they run.
type Selection struct {
	// Focus and Skip are regular expressions: a spec runs whose name matches Focus and not Skip.
	Focus, Skip string
	// Procs is the number of specs that run at once.
	Procs int
	// Timeout is for all of them.
	Timeout time.Duration
}

// Specs runs specs and returns the path of ginkgo's report, in JSON, which stays with the logs. Failed specs are not
// an error; no match is.
func (c *Cluster) Specs(ctx context.Context, s Selection) (report string, err error) {
	report = c.path("log", "report.json")
	list := c.path("run", "repositories.yaml")
	if err := errors.Join(os.RemoveAll(report), os.WriteFile(list, []byte(RepoList()), 0o600)); err != nil {
		return "", err
	}
	log, err := os.Create(c.path("log", "specs.log"))
	if err != nil {
		return "", err
	}
	defer log.Close()
	cmd := c.Command(ctx, c.Programs.Path("ginkgo"), "--procs="+strconv.Itoa(s.Procs), "--timeout="+s.Timeout.String(),
		"--focus="+s.Focus, "--skip="+s.Skip,
		"--no-color", "--output-interceptor-mode=none", "--fail-on-empty", "--json-report="+
			report, c.Programs.Path("e2e.test"), "--",
		"--kubeconfig="+c.Kubeconfig(), "--kubectl-path="+c.Programs.Path("kubectl"), "--provider=skeleton", "--num-nodes="+
			strconv.Itoa(len(c.nodes)),
		"--node-os-distro=debian", "--disable-log-dump=true")
	cmd.Env = append(cmd.Env, "KUBE_TEST_REPO_LIST="+list)
	cmd.Stdout, cmd.Stderr = log, log
	err = cmd.Run()
	var exit *exec.ExitError
	if _, missing := os.Stat(report); errors.As(err, &exit) && missing == nil {
		err = nil // the report has the failures
	}
	if c.ctx.Err() != nil {
		err = context.Cause(c.ctx)
	}
	if err != nil {
		err = fmt.Errorf("specs: %w: see %s", err, log.Name())
	}
	return report, err
}
