// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/aclements/go-moremath/stats"
	"github.com/spf13/pflag"
)

// Benchmark is what a command measures. It has the command's options, and its JSON is part of the result.
type Benchmark interface {
	AddFlags(*pflag.FlagSet)
	// Validate finds values that cannot be measured. It names them as flags.
	Validate(context.Context) error
	// Measure adds a title, subjects and series to the result.
	Measure(context.Context, *Result) error
}

// Run measures a benchmark, whose name is that of its command.
func Run(ctx context.Context, name string, b Benchmark) (*Result, error) {
	if err := b.Validate(ctx); err != nil {
		return nil, err
	}
	r := &Result{Benchmark: name, Options: b, Machine: ThisMachine()}
	err := b.Measure(ctx, r)
	if ctx.Err() != nil { // whatever its end leads to
		err = errors.New("interrupted")
	}
	if err != nil {
		return nil, err
	}
	r.LoadAfter = LoadAverage()
	return r, nil
}

// Plan has the options of benchmarks that run slipstream in turns. Their JSON is part of the result.
type Plan struct {
	Slipstream string `json:"-"` // path of the command
	Rounds     int    `json:"rounds"`
	Seconds    int    `json:"seconds_per_turn"`
}

// AddFlags adds the flags, with default values.
func (o *Plan) AddFlags(f *pflag.FlagSet, rounds, seconds int) {
	f.StringVar(&o.Slipstream, "slipstream", Beside("slipstream"), "slipstream `command`")
	f.IntVar(&o.Rounds, "rounds", rounds, "rounds of turns, one for each subject")
	f.IntVar(&o.Seconds, "seconds", seconds, "length of a turn")
}

// Validate finds values out of range.
func (o *Plan) Validate() (err error) {
	o.Slipstream, err = filepath.Abs(o.Slipstream) // it runs in another directory
	return errors.Join(err, Within("--rounds", o.Rounds, 1, 1000), Within("--seconds", o.Seconds, 1, 600))
}

// AddSubjects adds subjects to compare.
func (r *Result) AddSubjects(names ...string) {
	for _, name := range names {
		r.Subjects = append(r.Subjects, Subject{Name: name})
	}
}

// InTurns measures series of all subjects in rounds of turns.
func (r *Result) InTurns(ctx context.Context, rounds int, turn func(round, subject int, into Samples) error, series ...Series) error {
	samples := NewSamples(len(r.Subjects))
	err := Turns(ctx, rounds, len(r.Subjects), func(round, i int) error {
		if err := turn(round, i, samples[i]); err != nil {
			return fmt.Errorf("%s: %w", r.Subjects[i].Name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.Fill(series, samples)
}

// OneOf finds a flag's value that is not one of those allowed.
func OneOf(flag, value string, allowed ...string) error {
	if !slices.Contains(allowed, value) {
		return fmt.Errorf("%s: %q is none of %s", flag, value, strings.Join(allowed, ", "))
	}
	return nil
}

// SomeOf finds what is wrong with a flag that has several values, each one of those allowed.
func SomeOf(flag string, values []string, allowed ...string) error {
	if len(values) == 0 {
		return fmt.Errorf("%s: none of %s is given", flag, strings.Join(allowed, ", "))
	}
	for i, v := range values {
		if err := OneOf(flag, v, allowed...); err != nil {
			return err
		}
		if slices.Contains(values[:i], v) {
			return fmt.Errorf("%s: %s is given twice", flag, v)
		}
	}
	return nil
}

// Within finds a flag's value out of range.
func Within(flag string, n, least, most int) error {
	if n < least || n > most {
		return fmt.Errorf("%s: must be %d to %d", flag, least, most)
	}
	return nil
}

// Significant is the p-value below which a difference is claimed.
const Significant = 0.05

// Statistic is a number that sums up values.
type Statistic string

const (
	P50     Statistic = "median"
	P99     Statistic = "99th percentile"
	Mean    Statistic = "mean"
	Lowest  Statistic = "lowest"
	Highest Statistic = "highest"
)

func (s Statistic) of(values []float64) float64 {
	switch s {
	case P99:
		return Percentile(values, 99)
	case Mean:
		return stats.Mean(values)
	case Lowest:
		return slices.Min(values)
	case Highest:
		return slices.Max(values)
	}
	return Median(values)
}

// Median is the middle value, or the mean of the two in the middle; 0 of none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return stats.Sample{Xs: values}.Quantile(0.5)
}

// Percentile is the smallest value that p percent of the values do not exceed (nearest
// rank); 0 of none.
func Percentile(values []float64, p float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(n)))
	return slices.Sorted(slices.Values(values))[min(max(rank, 1), n)-1]
}

// MannWhitney is the p-value of the two-sided Mann-Whitney U test: how probable it is
// that two series of independent values differ at least as much by chance. Series of equal
// values have a p-value of 1. Three values on each side reach 0.1, five 0.008.
func MannWhitney(first, second []float64) (float64, error) {
	r, err := stats.MannWhitneyUTest(first, second, stats.LocationDiffers)
	if err == stats.ErrSamplesEqual {
		return 1, nil
	} else if err != nil {
		return 1, fmt.Errorf("Mann-Whitney test of %d and %d values: %w", len(first), len(second), err)
	}
	return r.P, nil
}

// Turns makes rounds of a turn of each of n subjects, in the order of [Order]. What disturbs the machine
// for longer than a turn disturbs all subjects.
func Turns(ctx context.Context, rounds, n int, turn func(round, subject int) error) error {
	for round := range rounds {
		for _, i := range Order(n, round) {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := turn(round, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// Order is the order of n turns in a round. Over 2n rounds each subject is first, second
// and so on equally often, and follows each other subject equally often.
func Order(n, round int) []int {
	turns := make([]int, n)
	for i := range turns {
		turns[i] = (round + i) % n
	}
	if round/n%2 == 1 {
		slices.Reverse(turns)
	}
	return turns
}
