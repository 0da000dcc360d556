// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
)

type options struct {
	Services  []int         `json:"services"` // one number, or for rules several that rise
	Endpoints int           `json:"endpoints_per_service"`
	Timeout   time.Duration `json:"timeout_ns"`
	Seed      uint64        `json:"seed"`
	IPTables  string        `json:"iptables"` // the variant
	Subjects  []string      `json:"subjects"`

	Runs    int           `json:"runs,omitempty"`
	Changes int           `json:"changes,omitempty"` // in each run, at most
	Burst   int           `json:"burst,omitempty"`   // changes in one
	Bursts  int           `json:"bursts,omitempty"`  // in each run, at most
	Budget  time.Duration `json:"budget_ns,omitempty"`

	Sample int `json:"sample,omitempty"` // connections for each number of Services, at most

	// Churn is how many endpoints are replaced in a second, for ChurnTime, in each run.
	Churn     int           `json:"churn,omitempty"`
	ChurnTime time.Duration `json:"churn_time_ns,omitempty"`

	Failures int `json:"failures,omitempty"` // of a restore, in each run

	// Of latency.
	Rounds  int `json:"rounds,omitempty"`
	Seconds int `json:"seconds_per_turn,omitempty"`
	Rate    int `json:"requests_per_second,omitempty"`

	// Of fleet.
	Proxies int `json:"proxies,omitempty"`

	rules      bool
	latency    bool
	fleet      bool
	nginx      string // path of the program
	load       string // path of the load generator
	informers  bool
	slipstream string // path of the program; built if empty
	output     string
	save       string
	logs       string // directory where logs stay; empty for none
	quiet      time.Duration
	calm       time.Duration
}

// The variants of the iptables commands. Both are installed on Debian, where iptables-nft is
// the default. Its version 1.8.9 looks through all chains for each chain it adds: a start of
// kube-proxy with 1,500 Services took 16 s, and one with 2,000 took 45 s, nearly all of it in
// iptables-restore. That would measure a defect of one version.
const (
	legacyVariant = "legacy"
	nftVariant    = "nft"
)

// The limits follow from the ranges of addresses.
const (
	maxServices     = 500_000
	maxEndpoints    = 1000
	maxAllEndpoints = 5_000_000
	maxNodes        = 189 // of a site

	// singles is how many Services have one endpoint, which single changes replace.
	singles = 16
)

func (o *options) most() int { return o.Services[len(o.Services)-1] }

func parse(args []string) (*options, error) {
	o := &options{rules: len(args) > 0 && args[0] == "rules", latency: len(args) > 0 && args[0] == "latency", fleet: len(args) > 0 && args[0] == "fleet"}
	var services, subjects string
	all := strings.Join(names(proxies.AllKinds), ", ")
	f := flag.NewFlagSet("scale", flag.ContinueOnError)
	f.IntVar(&o.Endpoints, "endpoints", 10, "endpoints of each Service")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Minute, "longest wait for one start, change or burst; a subject that needs longer is given up")
	f.DurationVar(&o.calm, "calm", 5*time.Minute, "how long to wait, at most, for a subject to be idle")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the choice of Services")
	f.StringVar(&o.IPTables, "iptables", legacyVariant, "`variant` of the iptables commands that iptables modes use, legacy or nft")
	f.StringVar(&o.slipstream, "slipstream", "", "path of the slipstream `program`; built from this checkout by default")
	f.StringVar(&o.output, "output", "table", "table or json")
	f.StringVar(&o.save, "save", "", "`file` to write the result to as JSON too")
	f.StringVar(&o.logs, "logs", "", "existing `directory` where configurations and logs stay")
	if o.rules {
		args = args[1:]
		f.StringVar(&subjects, "subjects", string(proxies.SlipstreamIPTables+","+proxies.KubeProxyIPTables), "whose rules to count")
		f.StringVar(&services, "services", "10,100,1000,10000", "numbers of Services in the cluster, with commas between, from few to many")
		f.IntVar(&o.Sample, "sample", 100, "Services that are connected to, with each number of them")
	} else if o.latency {
		args = args[1:]
		f.StringVar(&subjects, "subjects", strings.Join(names(proxies.Kinds), ","), "what to measure, with commas between, of "+all)
		f.StringVar(&services, "services", "1,10,100,1000,10000", "numbers of Services in the cluster, with commas between, from few to many")
		f.IntVar(&o.Rounds, "rounds", 5, "rounds of turns with each number of Services")
		f.IntVar(&o.Seconds, "seconds", 3, "length of a turn")
		f.IntVar(&o.Rate, "rate", 1000, "requests a second")
		f.StringVar(&o.nginx, "nginx", "nginx", "the `program` that serves")
		f.StringVar(&o.load, "load", "", "the load generator, a `program` of test/report/load")
	} else if o.fleet {
		args = args[1:]
		f.StringVar(&subjects, "subjects", string(proxies.Slipstream+","+proxies.KubeProxyNFTables), "whose fleets to measure, in nftables modes")
		f.StringVar(&services, "services", "1000", "Services in the cluster")
		f.IntVar(&o.Proxies, "proxies", 100, "proxies in a fleet")
		f.IntVar(&o.Changes, "changes", 20, "single changes, at most; see -budget")
		f.DurationVar(&o.Budget, "budget", time.Minute, "no further single change begins after this time (but 3 are made)")
		f.IntVar(&o.Churn, "churn", 2, "endpoints that are replaced in each second of -churn-time, after the single changes")
		f.DurationVar(&o.ChurnTime, "churn-time", 10*time.Second, "how long endpoints are replaced all the time")
		f.DurationVar(&o.quiet, "quiet", time.Minute, "how long to wait, at most, for the machine to be idle before and after a start")
	} else {
		f.StringVar(&services, "services", "10000", "Services in the cluster")
		f.StringVar(&subjects, "subjects", strings.Join(names(proxies.Kinds), ","), "what to measure, with commas between, of "+all)
		f.IntVar(&o.Runs, "runs", 1, "runs of each subject, each a new process on a new node, in turns")
		f.IntVar(&o.Changes, "changes", 200, "single changes in each run, at most; see -budget")
		f.IntVar(&o.Burst, "burst", 1000, "changes in a burst")
		f.IntVar(&o.Bursts, "bursts", 5, "bursts in each run, at most; see -budget")
		f.DurationVar(&o.Budget, "budget", time.Minute, "no further change, or burst, begins in a run after this time (but 3 changes and 1 burst are made)")
		f.IntVar(&o.Churn, "churn", 0, "endpoints that are replaced in each second of -churn-time, after the bursts")
		f.DurationVar(&o.ChurnTime, "churn-time", 20*time.Second, "how long endpoints are replaced all the time")
		f.IntVar(&o.Failures, "failures", 0, "how often to remove the chain of a Service and to change another one, in the end, so that a partial restore fails; iptables modes only")
		f.BoolVar(&o.informers, "informers", true, "measure a client with informers only, too, beside each subject")
		// The kernel frees rules of ten thousand Services for a while.
		f.DurationVar(&o.quiet, "quiet", 2*time.Minute, "how long to wait, at most, for the machine to be idle before each start")
	}
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("%q: only flags are expected", f.Arg(0))
	}
	for text := range strings.SplitSeq(services, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("-services: %q is not a number", text)
		}
		o.Services = append(o.Services, n)
	}
	o.Subjects = strings.Split(subjects, ",")
	return o, o.validate()
}

func (o *options) validate() error {
	last := 0
	for _, n := range o.Services {
		if n <= last || n > maxServices {
			return fmt.Errorf("-services: %d after %d: must rise, from 1 to %d", n, last, maxServices)
		}
		last = n
	}
	for i, name := range o.Subjects {
		if err := bench.OneOf("-subjects", name, names(proxies.AllKinds)...); err != nil {
			return err
		}
		if slices.Contains(o.Subjects[:i], name) {
			return fmt.Errorf("-subjects: %s is given twice", name)
		}
	}
	if n := last * o.Endpoints; n > maxAllEndpoints {
		return fmt.Errorf("-endpoints: %d Services of %d endpoints are %d in all, more than %d", last, o.Endpoints, n, maxAllEndpoints)
	}
	if o.Timeout <= 0 {
		return fmt.Errorf("-timeout: must be more than 0")
	}
	errs := []error{
		bench.Within("-endpoints", o.Endpoints, 1, maxEndpoints),
		bench.OneOf("-iptables", o.IPTables, legacyVariant, nftVariant),
		bench.OneOf("-output", o.output, "table", "json"),
	}
	if o.rules {
		return errors.Join(append(errs,
			bench.Within("-sample", o.Sample, 1, 10_000),
			bench.Within("-services: how many numbers there are", len(o.Services), 1, maxNodes/2))...)
	}
	if o.latency {
		return errors.Join(append(errs,
			bench.Within("-endpoints", o.Endpoints, 1, 100),
			bench.Within("-rounds", o.Rounds, 1, 100),
			bench.Within("-seconds", o.Seconds, 1, 600),
			bench.Within("-rate", o.Rate, 1, 100_000))...)
	}
	if o.fleet {
		return errors.Join(append(errs,
			bench.Within("-services: how many numbers there are", len(o.Services), 1, 1),
			bench.Within("-services", last, 2*singles, 10_000),
			bench.Within("-proxies", o.Proxies, 1, maxNodes),
			bench.Within("-changes", o.Changes, 1, 10_000),
			bench.Within("-churn", o.Churn, 1, 1000))...)
	}
	return errors.Join(append(errs,
		bench.Within("-services: how many numbers there are", len(o.Services), 1, 1),
		// As many Services of several endpoints as of one.
		bench.Within("-services", last, 2*singles, maxServices),
		bench.Within("-runs", o.Runs, 1, maxNodes/len(o.Subjects)),
		bench.Within("-changes", o.Changes, 1, 100_000),
		bench.Within("-churn", o.Churn, 0, 10_000),
		bench.Within("-failures", o.Failures, 0, 1000),
		bench.Within("-burst", o.Burst, 1, 100_000),
		bench.Within("-bursts", o.Bursts, 1, 1000))...)
}

// directory is where configurations and logs are written. done deletes it, unless it was
// given. All programs that are started from now on find the chosen variant of the iptables
// commands.
func (o *options) directory() (dir string, done func() error, err error) {
	dir, done = o.logs, func() error { return nil }
	if dir == "" {
		if dir, err = os.MkdirTemp("", "slipstream-scale-"); err != nil {
			return "", nil, err
		}
		done = func() error { return os.RemoveAll(dir) }
	}
	path, err := upstream.IPTablesPath(dir, o.IPTables)
	if err == nil {
		err = os.Setenv("PATH", path)
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("-iptables %s: %w", o.IPTables, err), done())
	}
	return dir, done, nil
}

// pause between two changes. All subjects let one second pass between two syncs, unless
// changes are rare (Slipstream's nftables mode).
const pause = 1200 * time.Millisecond

func names(kinds []proxies.Kind) (all []string) {
	for _, k := range kinds {
		all = append(all, string(k))
	}
	return all
}

// version is the version that a subject's program prints, with that of the iptables commands if
// it uses them.
func version(ctx context.Context, s proxies.Kind, program string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	commands := [][]string{{program, "--version"}, {"iptables", "--version"}}
	if s.IsSlipstream() {
		commands[0] = []string{program, "run", "--version"}
	}
	if s.Mode() != "iptables" {
		commands = commands[:1]
	}
	var all []string
	for _, c := range commands {
		if out, err := exec.CommandContext(ctx, c[0], c[1:]...).Output(); err == nil {
			all = append(all, strings.TrimSpace(string(out)))
		}
	}
	return strings.Join(all, ", ")
}

// findPrograms returns the paths of Slipstream's program and of kube-proxy's, and builds those
// that are not built yet.
func findPrograms(ctx context.Context, o *options, dir string, log upstream.Log) (slipstream, kubeProxy string, err error) {
	if kubeProxy, err = upstream.Binary(ctx, "kube-proxy", log); err != nil {
		return "", "", err
	}
	if o.slipstream == "" {
		slipstream, err = proxies.BuildSlipstream(ctx, dir)
	} else {
		slipstream, err = filepath.Abs(o.slipstream)
	}
	return slipstream, kubeProxy, err
}
