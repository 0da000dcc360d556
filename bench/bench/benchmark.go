// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

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
